package reconnect

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/warrenmq/warren/internal/testenv"
)

// However a connection fails, its error, in every form in which errors are printed, its states and its log lines tell
// nothing of the secret that was used for it. That of a URL has characters that are written in several ways.
func TestNoErrorTellsASecret(t *testing.T) {
	t.Parallel()
	b := testenv.Shared(t)
	const hidden = secret + "/p@ss:w?rd"
	user := testenv.Name(t, "user")
	b.AddUser(t, user, testenv.Secret())
	withUser := func(host, path, query string) string {
		u := url.URL{Scheme: "amqp", User: url.UserPassword(user, hidden), Host: host, Path: path, RawQuery: query}
		return u.String()
	}
	broker := hostOf(t, b.URL())
	right := func(context.Context) (amqp.Authentication, time.Time, error) {
		u, err := amqp.ParseURI(b.URL())
		return u.PlainAuth(), time.Time{}, err
	}
	for name, tc := range map[string]struct {
		url string
		cfg Config
	}{
		"PLAIN refused":            {withUser(broker, "/", ""), Config{}},
		"AMQPLAIN refused":         {withUser(broker, "/", "auth_mechanism=amqplain"), Config{}},
		"EXTERNAL without TLS":     {withUser(broker, "/", "auth_mechanism=external"), Config{}},
		"nobody there":             {withUser(deadAddress(t), "/", ""), Config{}},
		"no such host":             {withUser("nowhere.invalid:5672", "/", ""), Config{}},
		"no such virtual host":     {withUser(broker, "/nowhere", ""), Config{Credentials: right}},
		"TLS with who has none":    {strings.Replace(withUser(broker, "/", ""), "amqp:", "amqps:", 1), Config{}},
		"another host is no host":  {withUser(deadAddress(t), "/", ""), Config{Hosts: []string{"nowhere.invalid"}}},
		"provider that gives none": {withUser(broker, "/", ""), Config{Credentials: func(context.Context) (amqp.Authentication, time.Time, error) { return nil, time.Time{}, nil }}},
		"secret of the provider": {withUser(broker, "/", ""), Config{Credentials: func(context.Context) (amqp.Authentication, time.Time, error) {
			return &amqp.PlainAuth{Username: user, Password: hidden}, time.Time{}, nil
		}}},
		"bad settings": {withUser(broker, "/", ""), Config{MaxBody: -2}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var states strings.Builder
			tc.cfg.OnState = func(s State) { fmt.Fprintf(&states, "%+v\n", s) }
			cfg, log := testConfig(t, tc.cfg)
			_, err := Dial(within(t, 4*time.Second), tc.url, cfg)
			require.Error(t, err)
			for _, text := range []string{fmt.Sprintf("%v %+v %#v %q", err, err, err, err), states.String(), log.String()} {
				for _, form := range []string{hidden, url.QueryEscape(hidden), url.PathEscape(hidden), "p@ss", "w?rd", "w%3Frd"} {
					require.NotContains(t, text, form)
				}
			}
		})
	}
}
