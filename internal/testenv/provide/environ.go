package provide

import "os"

// The variables by which a process hands running servers down to its children. They are no interface for people, who
// set AMQP_URL and DATABASE_URL.
const (
	handedAMQPURL       = "WARREN_TEST_AMQP_URL"
	handedAMQPKind      = "WARREN_TEST_AMQP_KIND"
	handedAMQPVersion   = "WARREN_TEST_AMQP_VERSION"
	handedManagementURL = "WARREN_TEST_MANAGEMENT_URL"
	handedEvalAddress   = "WARREN_TEST_EVAL_ADDRESS"
	handedEvalToken     = "WARREN_TEST_EVAL_TOKEN"
	handedDatabaseURL   = "WARREN_TEST_DATABASE_URL"
)

// ContainersToo is the variable that is 1 when the suite also runs the tests on containers, in another pass. A test that
// needs containers then skips with a text that begins with LeftToContainers, and the suite sees to it that it ran there.
const (
	ContainersToo    = "WARREN_TEST_CONTAINERS_TOO"
	LeftToContainers = "runs on containers only: needs "
)

// handedRabbitMQ returns the broker a parent process handed down, nil when there is none.
func handedRabbitMQ() *RabbitMQ {
	rawURL := os.Getenv(handedAMQPURL)
	if rawURL == "" {
		return nil
	}
	return &RabbitMQ{
		URL:           rawURL,
		Kind:          Kind(os.Getenv(handedAMQPKind)),
		Version:       os.Getenv(handedAMQPVersion),
		ManagementURL: os.Getenv(handedManagementURL),
		eval:          evaluator{address: os.Getenv(handedEvalAddress), token: os.Getenv(handedEvalToken)},
	}
}

// environ returns what hands the broker down.
func (r *RabbitMQ) environ() []string {
	return []string{
		handedAMQPURL + "=" + r.URL,
		handedAMQPKind + "=" + string(r.Kind),
		handedAMQPVersion + "=" + r.Version,
		handedManagementURL + "=" + r.ManagementURL,
		handedEvalAddress + "=" + r.eval.address,
		handedEvalToken + "=" + r.eval.token,
	}
}
