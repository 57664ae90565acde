package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/warrenmq/warren/internal/testenv/provide"
)

// outage is a restart of the broker in the middle of the work.
type outage struct {
	broker  *provide.RabbitMQ
	giveUp  context.CancelFunc
	booting sync.WaitGroup
	err     error // read after booting
}

// begin returns when the broker is down. It boots again while the program goes on.
func (o *outage) begin(ctx context.Context) error {
	fmt.Println("--- half of the pictures are in the queue: the broker stops")
	if err := o.broker.Stop(ctx); err != nil {
		return err
	}
	fmt.Println("--- the broker is down, the other half is being published")
	o.booting.Go(func() {
		down := time.Now()
		if err := o.broker.Start(ctx); err != nil {
			if ctx.Err() == nil {
				o.err = fmt.Errorf("the broker does not come back: %w", err)
			}
			o.giveUp()
			return
		}
		fmt.Printf("--- the broker is back after %v\n", time.Since(down).Round(time.Millisecond))
	})
	return nil
}

// end waits for what begin has started.
func (o *outage) end() error {
	o.booting.Wait()
	return o.err
}
