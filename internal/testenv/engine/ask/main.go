// Command ask exits with status 0 when a Docker engine answers and has the image named, or could pull it; else it says
// why not and exits with status 1. scripts/setup asks it before it installs a server.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/warrenmq/warren/internal/testenv/engine"
)

// pullTime bounds it all; on a slow line it is the pull that takes its time.
const pullTime = 10 * time.Minute

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: ask IMAGE")
		os.Exit(2)
	}
	if err := ask(os.Args[1]); err != nil {
		fmt.Println("no container:", err)
		os.Exit(1)
	}
}

func ask(image string) error {
	ctx, cancel := context.WithTimeout(context.Background(), pullTime)
	defer cancel()
	e, err := engine.Find(ctx)
	if err != nil {
		return err
	}
	return e.Ensure(ctx, image, func(what string) { fmt.Println(what + ", which may take a few minutes") })
}
