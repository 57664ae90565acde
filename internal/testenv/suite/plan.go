package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"time"

	"github.com/warrenmq/warren/internal/testenv/engine"
	"github.com/warrenmq/warren/internal/testenv/provide"
)

// pullTime bounds the pulls of images that the engine does not have.
const pullTime = 10 * time.Minute

// helperModule is the module of the program that runs containers; this one is run from the repository's root.
const helperModule = "internal/testenv/container"

// requireAll reports whether anything left out is a failure.
func requireAll(getenv func(string) string) bool {
	return getenv("CI") == "true" || getenv("WARREN_REQUIRE_ALL") == "1"
}

// plan chooses the brokers to run on, and says which are left out and why. containers reports why there can be
// none; it may take minutes and is asked only where it matters. Where one broker is enough none is left out.
func plan(getenv func(string) string, onlyOne bool, containers func() error) (passes []provide.Kind, left []string) {
	const local, container = "the machine's own RabbitMQ", "RabbitMQ 4 in a container"
	defer func() {
		if onlyOne {
			left = nil
		}
	}()
	switch kind := provide.Kind(getenv("WARREN_BROKER")); {
	case kind == provide.Local:
		return []provide.Kind{kind}, []string{container + ": WARREN_BROKER=local"}
	case kind == provide.Container:
		return []provide.Kind{kind}, []string{local + ": WARREN_BROKER=container"}
	case kind != "": // url, or what is none: Start says so
		return []provide.Kind{kind}, nil
	case getenv("AMQP_URL") != "" && getenv("DATABASE_URL") != "":
		return []provide.Kind{provide.URL}, nil
	case getenv("AMQP_URL") != "":
		return []provide.Kind{""}, nil // the broker is the one named, the database one that can be had
	case onlyOne:
		return []provide.Kind{provide.Local}, nil
	}
	if err := containers(); err != nil {
		return []provide.Kind{provide.Local}, []string{fmt.Sprintf("%s: %v", container, err)}
	}
	return []provide.Kind{provide.Local, provide.Container}, nil
}

// haveContainers returns nil when a Docker engine has the images of both servers, or could pull them, and when this Go
// is new enough for the program that runs them.
func haveContainers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, pullTime)
	defer cancel()
	helper := exec.CommandContext(ctx, "go", "list", "-m")
	helper.Dir = helperModule
	if said, err := helper.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, bytes.TrimSpace(said))
	}
	e, err := engine.Find(ctx)
	if err != nil {
		return err
	}
	for _, image := range []string{
		cmp.Or(os.Getenv("WARREN_RABBITMQ_IMAGE"), "rabbitmq:4-management"),
		cmp.Or(os.Getenv("WARREN_POSTGRES_IMAGE"), "postgres:17"),
	} {
		if err := e.Ensure(ctx, image, func(what string) { fmt.Println(what) }); err != nil {
			return err
		}
	}
	return nil
}
