// Package testenv gives tests their broker and database, and the tools to break them.
//
//	func TestMain(m *testing.M) { testenv.Main(m) }
//
//	func TestSurvivesACut(t *testing.T) {
//		broker := testenv.Shared(t)
//		...
//		broker.CutConnections(t, "orders")
//		testenv.Eventually(t, 5*time.Second, func() bool { return broker.Queue(t, queue).Ready == 0 }, "queue drained")
//	}
//
// [Shared] is the one broker of the whole run; what is done to it must touch nothing but the calling test's own
// connections and queues, so names come from [Name]. [Node] lends a node of its own to tests that stop, freeze or starve
// the whole broker, [Cluster] starts three of them for one test. [Proxy] puts a faulty network in front of any.
//
// [Postgres] is a database of the test's own on the run's one server, whose sessions [TerminateSessions] ends and
// [FreezeBackend] stops; [HoldTransaction] and [HoldSnapshot] are other people's sessions. [PostgresNode] lends a server to
// tests that stop, crash or freeze all of it.
//
// A test that finds no broker fails and names the one command that provides one. Where only AMQP_URL is given, tests
// that need what an address alone cannot give are left out; [Main] lists them at the end, and WARREN_REQUIRE_ALL=1
// makes each of them a failure. What needs containers, a [Cluster], runs in the suite's pass on those.
//
// Only _test.go files import this package; what needs a broker without package testing uses package provide.
package testenv
