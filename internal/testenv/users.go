package testenv

import "testing"

// AddUser makes an account without any permission and returns the broker's URL with it. The account is deleted when
// the test ends. Unless its password is a Secret, it is made
// longer, into one that is found wherever it is written.
func (b *Broker) AddUser(tb testing.TB, name, password string) string {
	tb.Helper()
	password = findable(password)
	b.user(tb, `ok = rabbit_auth_backend_internal:add_user($name, $password, <<"test">>), ok.`, name, password)
	tb.Cleanup(func() { b.DeleteUser(tb, name) })
	return b.as(tb, name, password)
}

// SetPermissions lets an account configure, write to and read from what the three patterns match, in the virtual host of
// the broker's URL, from now on. Open channels remember what they were allowed for a while; new ones do not.
func (b *Broker) SetPermissions(tb testing.TB, user, configure, write, read string) {
	tb.Helper()
	b.evalWith(tb, nil, `ok = rabbit_auth_backend_internal:set_permissions($user, $vhost, $configure, $write, $read, <<"test">>), ok.`,
		map[string]string{"user": user, "vhost": b.vhost(tb), "configure": configure, "write": write, "read": read})
}

// ChangePassword gives an account another password, made longer like AddUser's, and returns the broker's URL with it. Its
// connections stay.
func (b *Broker) ChangePassword(tb testing.TB, name, password string) string {
	tb.Helper()
	password = findable(password)
	b.user(tb, `ok = rabbit_auth_backend_internal:change_password($name, $password, <<"test">>), ok.`, name, password)
	return b.as(tb, name, password)
}

// DeleteUser deletes an account; the broker then closes its connections. One that is not there is deleted.
func (b *Broker) DeleteUser(tb testing.TB, name string) {
	tb.Helper()
	b.user(tb, `
case rabbit_auth_backend_internal:exists($name) of
    true -> ok = rabbit_auth_backend_internal:delete_user($name, <<"test">>), ok;
    false -> ok
end.`, name, "")
}

func (b *Broker) user(tb testing.TB, source, name, password string) {
	tb.Helper()
	b.evalWith(tb, nil, source, map[string]string{"name": name, "password": password})
}
