package provide

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
)

// Cluster is a RabbitMQ cluster, each node in a container of its own, all in a network of their own. Its methods are safe
// for concurrent use.
type Cluster struct {
	// Nodes are its members. Each keeps its URL, and its data, over Kill and Start.
	Nodes []*RabbitMQ

	helper  *helper
	network string
}

// NodeName returns the name of a member in the cluster.
func (c *Cluster) NodeName(i int) string { return "rabbit@" + clusterHost(i) }

// clusterHost is a member's name in the network.
func clusterHost(i int) string { return fmt.Sprintf("rmq%d", i+1) }

// startCluster runs a cluster whose nodes find each other while they boot.
func startCluster(ctx context.Context, h *helper, image string, size int) (*Cluster, error) {
	free, err := freePorts(3 * size)
	if err != nil {
		return nil, err
	}
	made, err := h.do(ctx, helperRequest{Op: "network"})
	if err != nil {
		return nil, err
	}
	c := &Cluster{Nodes: make([]*RabbitMQ, size), helper: h, network: made.Network}
	err = c.each(func(i int) error {
		var err error
		c.Nodes[i], err = runContainerRabbit(ctx, h, nodeSpec{plugins: nodePlugins}, free[3*i:3*i+3], c.member(i, image))
		return err
	})
	if err == nil {
		err = c.each(func(i int) error { return c.Nodes[i].wait(ctx) })
	}
	if err == nil {
		err = c.awaitFormed(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, c.Remove())
	}
	return c, nil
}

// member describes a node. Peer discovery lets one of the nodes begin and the others join it.
func (c *Cluster) member(i int, image string) containerSpec {
	config := []string{"cluster_formation.peer_discovery_backend = classic_config"}
	for n := range c.Nodes {
		config = append(config, fmt.Sprintf("cluster_formation.classic_config.nodes.%d = %s", n+1, c.NodeName(n)))
	}
	return containerSpec{
		Image:   image,
		Network: c.network,
		Host:    clusterHost(i),
		Files:   map[string]string{"/etc/rabbitmq/conf.d/91-cluster.conf": strings.Join(config, "\n") + "\n"},
		// The same for all of them. The network is theirs alone, so it need not be a secret.
		Env: map[string]string{"RABBITMQ_ERLANG_COOKIE": "warren"},
	}
}

// awaitFormed blocks until every node knows all the others to be running.
func (c *Cluster) awaitFormed(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, bootTime)
	defer cancel()
	return c.each(func(i int) error {
		for {
			var running int
			err := c.Nodes[i].Eval(ctx, "length(rabbit_nodes:list_running()).", &running)
			if err == nil && running == len(c.Nodes) {
				return nil
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("%s sees %d of %d nodes: %w", c.NodeName(i), running, len(c.Nodes), errors.Join(err, ctx.Err()))
			case <-time.After(50 * time.Millisecond):
			}
		}
	})
}

// each calls f for every node, all at the same time.
func (c *Cluster) each(f func(i int) error) error {
	errs := make([]error, len(c.Nodes))
	var wg sync.WaitGroup
	for i := range c.Nodes {
		wg.Go(func() { errs[i] = f(i) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// Remove ends all nodes at once and deletes them with their data.
func (c *Cluster) Remove() error {
	err := c.each(func(i int) error {
		if c.Nodes[i] == nil {
			return nil
		}
		return c.Nodes[i].Remove()
	})
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_, gone := c.helper.do(ctx, helperRequest{Op: "remove-network", Network: c.network})
	return errors.Join(err, gone)
}
