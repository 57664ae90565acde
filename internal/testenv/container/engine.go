package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go"
	tclog "github.com/testcontainers/testcontainers-go/log"
	tcnetwork "github.com/testcontainers/testcontainers-go/network"
)

// spec describes a container to run.
type spec struct {
	Image string            `json:"image"`
	Env   map[string]string `json:"env,omitempty"`
	Files map[string]string `json:"files,omitempty"` // path in the container: content
	Cmd   []string          `json:"cmd,omitempty"`
	Ports map[int]int       `json:"ports"` // port in the container: port on loopback, which it keeps when restarted

	Network string `json:"network,omitempty"` // made by network; "" for the engine's own
	Host    string `json:"host,omitempty"`    // the container's name for itself and, in Network, for the others
}

// engine is the Docker engine. The containers of this process are known there, by their label.
type engine struct{ client client.APIClient }

// newEngine connects to the engine, and removes what dead processes like this one left there.
func newEngine(ctx context.Context) (*engine, error) {
	// The reaper would be one more image to pull; this process cleans up, and so does its successor.
	os.Setenv("TESTCONTAINERS_RYUK_DISABLED", "true")
	if os.Getenv("TESTCONTAINERS_HOST_OVERRIDE") == "" {
		os.Setenv("TESTCONTAINERS_HOST_OVERRIDE", "127.0.0.1")
	}
	tclog.SetDefault(tclog.NewNoopLogger())
	provider, err := testcontainers.NewDockerProvider(testcontainers.WithLogger(tclog.NewNoopLogger()))
	if err != nil {
		return nil, fmt.Errorf("no Docker engine: %w", err)
	}
	e := &engine{client: provider.Client()}
	if err := e.removeOrphans(ctx); err != nil {
		return nil, fmt.Errorf("remove the containers of dead processes: %w", err)
	}
	return e, nil
}

// handle does what a request asks.
func (e *engine) handle(ctx context.Context, r request) response {
	answer := response{ID: r.ID}
	var err error
	switch r.Op {
	case "run":
		answer.Container, err = e.run(ctx, r.Spec)
	case "state":
		answer.Running, answer.Log, err = e.state(ctx, r.Container)
	case "start":
		_, err = e.client.ContainerStart(ctx, r.Container, client.ContainerStartOptions{})
	case "stop":
		_, err = e.client.ContainerStop(ctx, r.Container, client.ContainerStopOptions{Timeout: &r.Seconds})
	case "kill":
		err = e.kill(ctx, r.Container)
	case "pause":
		err = e.pause(ctx, r.Container)
	case "unpause":
		_, err = e.client.ContainerUnpause(ctx, r.Container, client.ContainerUnpauseOptions{})
	case "signal":
		err = e.signal(ctx, r.Container, r.PID, r.Signal)
	case "remove":
		err = e.remove(r.Container)
	case "network":
		answer.Network, err = e.newNetwork(ctx)
	case "remove-network":
		err = e.removeNetwork(ctx, r.Network)
	default:
		err = fmt.Errorf("unknown op %q", r.Op)
	}
	if err != nil {
		answer.Error = err.Error()
	}
	return answer
}

// run pulls the image where it is missing, starts the container and returns its ID; it does not wait until it serves.
func (e *engine) run(ctx context.Context, s spec) (string, error) {
	ports := make([]string, 0, len(s.Ports))
	bindings := network.PortMap{}
	for inside, outside := range s.Ports {
		port := strconv.Itoa(inside) + "/tcp"
		ports = append(ports, port)
		bindings[network.MustParsePort(port)] = []network.PortBinding{
			{HostIP: netip.MustParseAddr("127.0.0.1"), HostPort: strconv.Itoa(outside)},
		}
	}
	files := make([]testcontainers.ContainerFile, 0, len(s.Files))
	for path, content := range s.Files {
		files = append(files, testcontainers.ContainerFile{
			Reader: strings.NewReader(content), ContainerFilePath: path, FileMode: 0o644,
		})
	}
	options := []testcontainers.ContainerCustomizer{
		testcontainers.WithLogger(tclog.NewNoopLogger()),
		testcontainers.WithLabels(map[string]string{ownerLabel: self().String()}),
		testcontainers.WithEnv(s.Env),
		testcontainers.WithFiles(files...),
		testcontainers.WithCmd(s.Cmd...),
		testcontainers.WithExposedPorts(ports...),
		testcontainers.WithHostConfigModifier(func(hc *container.HostConfig) {
			hc.PortBindings = bindings
		}),
	}
	if s.Host != "" {
		options = append(options, testcontainers.WithConfigModifier(func(c *container.Config) { c.Hostname = s.Host }))
	}
	if s.Network != "" {
		options = append(options, tcnetwork.WithNetworkName([]string{s.Host}, s.Network))
	}
	ctr, err := testcontainers.Run(ctx, s.Image, options...)
	if err != nil {
		return "", err // what was made of it, close removes
	}
	return ctr.GetContainerID(), nil
}

// state reports whether a container runs, paused or not, and the end of what it wrote.
func (e *engine) state(ctx context.Context, id string) (running bool, log string, err error) {
	got, err := e.client.ContainerInspect(ctx, id, client.ContainerInspectOptions{})
	if err != nil {
		return false, "", err
	}
	return got.Container.State.Running, e.log(ctx, id), nil
}

// log returns the last lines a container wrote, or why they cannot be had.
func (e *engine) log(ctx context.Context, id string) string {
	logs, err := e.client.ContainerLogs(ctx, id, client.ContainerLogsOptions{ShowStdout: true, ShowStderr: true, Tail: "40"})
	if err != nil {
		return err.Error()
	}
	defer logs.Close()
	var text bytes.Buffer
	if _, err := stdcopy.StdCopy(&text, &text, logs); err != nil {
		return err.Error()
	}
	return text.String()
}

// pause freezes a container. It tries again a few times: on a busy machine runc gives up before all threads are frozen
// ("unable to freeze"), and leaves the container running.
func (e *engine) pause(ctx context.Context, id string) (err error) {
	for range 5 {
		if _, err = e.client.ContainerPause(ctx, id, client.ContainerPauseOptions{}); err == nil {
			return nil
		}
	}
	return err
}

// kill ends a container's processes with SIGKILL, paused or not, and waits for it.
func (e *engine) kill(ctx context.Context, id string) error {
	_, err := e.client.ContainerKill(ctx, id, client.ContainerKillOptions{Signal: "KILL"})
	if errdefs.IsConflict(err) { // it does not run
		return nil
	}
	if err != nil {
		return err
	}
	wait := e.client.ContainerWait(ctx, id, client.ContainerWaitOptions{Condition: container.WaitConditionNotRunning})
	select {
	case <-wait.Result:
		return nil
	case err := <-wait.Error:
		return err
	}
}

// remove ends a container at once and deletes it with its data.
func (e *engine) remove(id string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // also when the parent is gone
	defer cancel()
	_, err := e.client.ContainerRemove(ctx, id, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
	if errdefs.IsNotFound(err) || errdefs.IsConflict(err) { // a conflict: somebody else is removing it
		return nil
	}
	return err
}

// close removes all containers of this process, together, also those whose start was broken off, and its networks.
func (e *engine) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return e.removeAll(ctx, func(o owner, _ time.Time) bool { return o == self() })
}

// removeOrphans removes the containers and networks whose owners died without removing them.
func (e *engine) removeOrphans(ctx context.Context) error { return e.removeAll(ctx, owner.dead) }

// removeAll removes the containers, and then the networks, whose owner and time of creation are found to be condemned.
func (e *engine) removeAll(ctx context.Context, condemned func(owner, time.Time) bool) error {
	list, err := e.client.ContainerList(ctx, client.ContainerListOptions{
		All:     true,
		Filters: make(client.Filters).Add("label", ownerLabel),
	})
	if err != nil {
		return err
	}
	errs := make([]error, len(list.Items))
	var removing sync.WaitGroup
	for i, c := range list.Items {
		o, err := parseOwner(c.Labels[ownerLabel])
		if err == nil && condemned(o, time.Unix(c.Created, 0)) {
			removing.Go(func() { errs[i] = e.remove(c.ID) })
		}
	}
	removing.Wait()
	return errors.Join(append(errs, e.removeNetworks(ctx, condemned))...)
}
