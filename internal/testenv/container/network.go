package main

import (
	"context"
	"errors"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"
	"github.com/testcontainers/testcontainers-go/network"
)

// newNetwork makes a network of the containers' own, in which they find each other by name, and returns its name.
func (e *engine) newNetwork(ctx context.Context) (string, error) {
	n, err := network.New(ctx, network.WithLabels(map[string]string{ownerLabel: self().String()}))
	if err != nil {
		return "", err
	}
	return n.Name, nil
}

// removeNetwork removes a network that no container is in any more.
func (e *engine) removeNetwork(ctx context.Context, name string) error {
	_, err := e.client.NetworkRemove(ctx, name, client.NetworkRemoveOptions{})
	if errdefs.IsNotFound(err) {
		return nil
	}
	return err
}

// removeNetworks removes the networks whose owner and time of creation are found to be condemned.
func (e *engine) removeNetworks(ctx context.Context, condemned func(owner, time.Time) bool) error {
	list, err := e.client.NetworkList(ctx, client.NetworkListOptions{Filters: make(client.Filters).Add("label", ownerLabel)})
	if err != nil {
		return err
	}
	var errs []error
	for _, n := range list.Items {
		if o, err := parseOwner(n.Labels[ownerLabel]); err == nil && condemned(o, n.Created) {
			errs = append(errs, e.removeNetwork(ctx, n.ID))
		}
	}
	return errors.Join(errs...)
}
