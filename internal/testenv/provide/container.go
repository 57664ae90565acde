package provide

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"
)

// The images that are run unless WARREN_RABBITMQ_IMAGE and WARREN_POSTGRES_IMAGE say otherwise.
const (
	rabbitImage   = "rabbitmq:4-management"
	postgresImage = "postgres:17"
)

// Ports of a RabbitMQ container, inside. The official ones of the server, and one for the evaluator.
const (
	amqpPort       = 5672
	amqpsPort      = 5671
	managementPort = 15672
	evalPort       = 15999
)

// configDir is where the images of RabbitMQ have its configuration; the server may write there.
const configDir = "/etc/rabbitmq"

// container is a machine run by the container helper.
type container struct {
	helper *helper
	id     string
}

// runContainer runs a container on loopback ports that stay the same when it is restarted.
func runContainer(ctx context.Context, h *helper, spec containerSpec) (*container, error) {
	answer, err := h.do(ctx, helperRequest{Op: "run", Spec: &spec})
	if err != nil {
		return nil, err
	}
	return &container{helper: h, id: answer.Container}, nil
}

func (c *container) do(ctx context.Context, op string) error {
	_, err := c.helper.do(ctx, helperRequest{Op: op, Container: c.id})
	return err
}

// within is do for what has no context: it is bounded all the same.
func (c *container) within(op string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return c.do(ctx, op)
}

func (c *container) start(ctx context.Context) error { return c.do(ctx, "start") }
func (c *container) kill() error                     { return c.within("kill") }
func (c *container) freeze() error                   { return c.within("pause") }
func (c *container) thaw() error                     { return c.within("unpause") }
func (c *container) remove() error                   { return c.within("remove") }

func (c *container) stop(ctx context.Context) error {
	_, err := c.helper.do(ctx, helperRequest{Op: "stop", Container: c.id, Seconds: int(stopTime.Seconds())})
	return err
}

// signalBackend sends a signal to a process inside the container.
func (c *container) signalBackend(ctx context.Context, pid int, signal string) error {
	_, err := c.helper.do(ctx, helperRequest{Op: "signal", Container: c.id, PID: pid, Signal: signal})
	return err
}

func (c *container) running() bool  { return c.state().Running }
func (c *container) output() string { return c.state().Log }

func (c *container) state() helperResponse {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	answer, err := c.helper.do(ctx, helperRequest{Op: "state", Container: c.id})
	if err != nil {
		answer.Log = err.Error()
	}
	return answer
}

// startContainerRabbit runs RabbitMQ in a container.
func startContainerRabbit(ctx context.Context, h *helper, image string, spec nodeSpec) (*RabbitMQ, error) {
	free, err := freePorts(4)
	if err != nil {
		return nil, err
	}
	r, err := runContainerRabbit(ctx, h, spec, free, containerSpec{Image: image})
	if err != nil {
		return nil, err
	}
	if err := r.wait(ctx); err != nil {
		_ = r.Remove() // the first error says more
		return nil, err
	}
	return r, nil
}

// runContainerRabbit runs RabbitMQ in a container on three free ports of loopback, four with TLS, and does not wait until it
// serves. What spec says beside the image is added to.
func runContainerRabbit(ctx context.Context, h *helper, node nodeSpec, free []int, spec containerSpec) (*RabbitMQ, error) {
	token := newToken()
	inside := nodePorts{amqp: amqpPort, eval: evalPort}
	spec.Ports = map[int]int{amqpPort: free[0], evalPort: free[1]}
	r := &RabbitMQ{
		URL:  amqpURL(free[0]),
		Kind: Container,
		eval: evaluator{address: loopback(free[1]), token: token},
	}
	if slices.Contains(node.plugins, management) {
		inside.management, spec.Ports[managementPort] = managementPort, free[2]
		r.ManagementURL = "http://" + loopback(free[2])
	}
	if node.tls != nil {
		inside.tls, spec.Ports[amqpsPort] = amqpsPort, free[3]
		r.TLSURL, r.tlsDir = amqpsURL(free[3]), configDir
	}
	spec.Files = merged(merged(spec.Files, node.tls.in(configDir)), map[string]string{
		configDir + "/conf.d/90-warren.conf": nodeConfig("0.0.0.0", configDir, inside),
		configDir + "/advanced.config":       advancedConfig,
		configDir + "/enabled_plugins":       pluginsFile(node.plugins),
		configDir + "/warren_eval.erl":       evalScript,
	})
	spec.Env = merged(spec.Env, map[string]string{
		"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": `-eval file:script("/etc/rabbitmq/warren_eval.erl")`,
		"WARREN_EVAL_ADDRESS":                 "0.0.0.0",
		"WARREN_EVAL_PORT":                    strconv.Itoa(evalPort),
		"WARREN_EVAL_TOKEN":                   token,
	})
	ctr, err := runContainer(ctx, h, spec)
	if err != nil {
		return nil, fmt.Errorf("run RabbitMQ in a container: %w", err)
	}
	r.machine = ctr
	return r, nil
}

// merged returns a map with what is in both.
func merged(a, b map[string]string) map[string]string {
	both := make(map[string]string, len(a)+len(b))
	maps.Copy(both, a)
	maps.Copy(both, b)
	return both
}
