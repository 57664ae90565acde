package testenv

import (
	"context"
	"fmt"
	"slices"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/warrenmq/warren/internal/testenv/provide"
)

// clusterSize is the smallest number of nodes of which one may fail.
const clusterSize = 3

// NodeCluster is a RabbitMQ cluster of three nodes that the test may kill and start as it likes. Nodes are numbered from
// 0. Its methods fail the test that it was started for, and are called from that test's goroutine.
type NodeCluster struct {
	tb      testing.TB
	cluster *provide.Cluster
	down    [clusterSize]bool
}

// Cluster starts a cluster for the test alone and removes it when the test ends. It takes about ten seconds, three
// containers and a third of a gigabyte. It needs containers: where the suite runs the tests on those as well as on another
// broker, only there.
func Cluster(tb testing.TB) *NodeCluster {
	tb.Helper()
	shared, err := sharedServer()
	if err != nil {
		tb.Fatalf("no RabbitMQ for the tests: %v\n%s", err, hint)
	}
	if shared.Kind != provide.Container {
		leaveToContainers(tb, "three nodes in containers")
	}
	p, err := provider()
	if err != nil {
		tb.Fatal(err) // asked for already
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTime)
	defer cancel()
	cluster, err := p.Cluster(ctx, clusterSize)
	if err != nil {
		tb.Fatalf("no RabbitMQ cluster for the test: %v", err)
	}
	tb.Cleanup(func() {
		if err := cluster.Remove(); err != nil {
			tb.Errorf("remove the cluster: %v", err)
		}
	})
	return &NodeCluster{tb: tb, cluster: cluster}
}

// URL returns the address of a node, which it keeps.
func (c *NodeCluster) URL(i int) string { return c.cluster.Nodes[i].URL }

// URLs returns the addresses of all nodes.
func (c *NodeCluster) URLs() []string {
	urls := make([]string, clusterSize)
	for i := range urls {
		urls[i] = c.URL(i)
	}
	return urls
}

// Hosts returns host:port of all nodes, for a client that is given one URL and the hosts of the others.
func (c *NodeCluster) Hosts() []string {
	c.tb.Helper()
	hosts := make([]string, clusterSize)
	for i := range hosts {
		u, err := amqp.ParseURI(c.URL(i))
		if err != nil {
			c.tb.Fatalf("the URL of node %d: %v", i, err)
		}
		hosts[i] = fmt.Sprintf("%s:%d", u.Host, u.Port)
	}
	return hosts
}

// Broker returns a node, to look into it and at its connections.
func (c *NodeCluster) Broker(i int) *Broker { return &Broker{server: c.cluster.Nodes[i]} }

// Up returns a node that runs.
func (c *NodeCluster) Up() int {
	c.tb.Helper()
	up := slices.Index(c.down[:], false)
	if up < 0 {
		c.tb.Fatal("all nodes are down")
	}
	return up
}

// Kill ends a node as a power failure would. The others notice at once, by their connections to it.
func (c *NodeCluster) Kill(i int) {
	c.tb.Helper()
	if err := c.cluster.Nodes[i].Kill(); err != nil {
		c.tb.Fatalf("kill node %d: %v", i, err)
	}
	c.down[i] = true
}

// Start boots a node that was killed, and returns once it serves. Its queues may take a moment longer: see AwaitLeader.
func (c *NodeCluster) Start(i int) {
	c.tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), startTime)
	defer cancel()
	if err := c.cluster.Nodes[i].Start(ctx); err != nil {
		c.tb.Fatalf("start node %d: %v", i, err)
	}
	c.down[i] = false
}

// queueLeader has a quorum queue's members agree on a question, for which it takes a leader and a majority, and answers
// with the leader's node, or with "" when they do not within half a second.
const queueLeader = `
{ok, Queue} = rabbit_amqqueue:lookup(rabbit_misc:r($vhost, queue, $name)),
{Name, _} = amqqueue:get_pid(Queue),
case ra:consistent_query({Name, node()}, fun erlang:is_tuple/1, 500) of
    {ok, _, {_, Leader}} -> Leader;
    _ -> <<>>
end.`

// Leader returns the node that leads a quorum queue, or -1 when it has no leader or no majority now.
func (c *NodeCluster) Leader(queue string) int {
	c.tb.Helper()
	b := c.Broker(c.Up())
	var leader string
	b.evalWith(c.tb, &leader, queueLeader, map[string]string{"vhost": b.vhost(c.tb), "name": queue})
	for i := range clusterSize {
		if c.cluster.NodeName(i) == leader {
			return i
		}
	}
	return -1
}

// AwaitLeader waits until a quorum queue has a leader and a majority, and returns the leader.
func (c *NodeCluster) AwaitLeader(queue string) int {
	c.tb.Helper()
	leader := -1
	Eventually(c.tb, leaderWithin, func() bool {
		leader = c.Leader(queue)
		return leader >= 0
	}, "queue %q has a leader and a majority", queue)
	return leader
}

// AwaitNoMajority waits until a quorum queue has no leader or no majority.
func (c *NodeCluster) AwaitNoMajority(queue string) {
	c.tb.Helper()
	Eventually(c.tb, leaderWithin, func() bool { return c.Leader(queue) < 0 }, "queue %q has no majority", queue)
}

// NodeOf returns the node that has the connection with that connection_name, or -1 when no one node has.
func (c *NodeCluster) NodeOf(connection string) int {
	c.tb.Helper()
	var nodes []string
	c.Broker(c.Up()).evalWith(c.tb, &nodes, found+`[node(Pid) || {Pid, _} <- Found].`, map[string]string{"prefix": connection})
	node := -1
	for i := range clusterSize {
		if slices.Contains(nodes, c.cluster.NodeName(i)) {
			if node >= 0 {
				return -1
			}
			node = i
		}
	}
	return node
}
