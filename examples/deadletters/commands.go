package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/warrenmq/warren/retry"
)

func count(ctx context.Context, c command) error {
	n, err := c.letters.Count(ctx)
	if err == nil {
		fmt.Fprintln(c.out, n)
	}
	return err
}

// each calls f with the dead letters that are meant.
func (c command) each(ctx context.Context, f func(retry.DeadLetter)) (n int, err error) {
	for letter, err := range c.letters.All(ctx) {
		if err != nil {
			return n, err
		}
		if c.means(letter) {
			f(letter)
			if n++; n == c.limit {
				break
			}
		}
	}
	return n, nil
}

func list(ctx context.Context, c command) error {
	t := tabwriter.NewWriter(c.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "ID\tREASON\tATTEMPTS\tLAST FAILED\tEXCHANGE\tKEY\tBYTES\tLAST ERROR")
	n, err := c.each(ctx, func(l retry.DeadLetter) {
		fmt.Fprintf(t, "%s\t%s\t%d\t%s\t%s\t%s\t%d\t%s\n", cell(l.MessageId, 40), cell(why(l), 30), l.Attempt, when(l.LastFailure),
			cell(l.Exchange, 30), cell(l.RoutingKey, 30), len(l.Body), cell(l.LastError, 60))
	})
	if flushing := t.Flush(); flushing != nil && err == nil {
		err = flushing
	}
	if err == nil {
		fmt.Fprintf(c.out, "%d dead letters\n", n)
	}
	return err
}

func show(ctx context.Context, c command) error {
	n, err := c.each(ctx, func(l retry.DeadLetter) { c.print(l) })
	if err == nil && n == 0 {
		err = fmt.Errorf("none of them is meant")
	}
	return err
}

// print shows all there is to know of l.
func (c command) print(l retry.DeadLetter) {
	line := func(name string, value any, shown bool) {
		if shown {
			fmt.Fprintf(c.out, "  %-18s %s\n", name, safe(fmt.Sprint(value)))
		}
	}
	fmt.Fprintf(c.out, "message %s\n", cell(l.MessageId, 255))
	line("reason", why(l), true)
	line("attempts", l.Attempt, true)
	line("first failed", when(l.FirstFailure), !l.FirstFailure.IsZero())
	line("last failed", when(l.LastFailure), !l.LastFailure.IsZero())
	line("last error", l.LastError, l.LastError != "")
	line("by", l.Consumer, l.Consumer != "")
	line("left out", strings.Join(l.Cut, ", "), len(l.Cut) > 0)
	line("exchange", cmp.Or(l.Exchange, "(the default exchange)"), true)
	line("routing key", l.RoutingKey, true)
	line("type", l.Type, l.Type != "")
	line("content type", l.ContentType, l.ContentType != "")
	line("content encoding", l.ContentEncoding, l.ContentEncoding != "")
	line("correlation id", l.CorrelationId, l.CorrelationId != "")
	line("reply to", l.ReplyTo, l.ReplyTo != "")
	line("user id", l.UserId, l.UserId != "")
	line("app id", l.AppId, l.AppId != "")
	line("expiration", l.Expiration+" ms", l.Expiration != "")
	line("priority", l.Priority, l.Priority > 0)
	line("timestamp", when(l.Timestamp), !l.Timestamp.IsZero())
	for _, name := range slices.Sorted(maps.Keys(l.Headers)) {
		line("header "+safe(name), value(l.Headers[name]), true)
	}
	fmt.Fprintf(c.out, "  body, %d bytes\n", len(l.Body))
	c.printBody(l.Body)
	fmt.Fprintln(c.out)
}

// value is a header's value as text.
func value(v any) string {
	switch v := v.(type) {
	case []byte:
		return fmt.Sprintf("%q", v)
	case time.Time:
		return when(v)
	}
	return fmt.Sprint(v)
}

func (c command) printBody(body []byte) {
	shown := body[:min(len(body), c.body)]
	for line := range strings.Lines(string(shown)) {
		fmt.Fprintf(c.out, "  | %s\n", safe(strings.TrimSuffix(line, "\n")))
	}
	if len(shown) < len(body) {
		fmt.Fprintf(c.out, "  and %d bytes more (-body)\n", len(body)-len(shown))
	}
}

func redrive(ctx context.Context, c command) error {
	n, err := c.letters.Redrive(ctx, c.selection())
	return c.did(n, "sent back to "+safe(c.queue), err)
}

func discard(ctx context.Context, c command) error {
	n, err := c.letters.Discard(ctx, c.selection())
	return c.did(n, "thrown away", err)
}

// did says how many it were, also when that ended with an error.
func (c command) did(n int, what string, err error) error {
	if c.dryRun {
		what = "would be " + what
	}
	fmt.Fprintf(c.out, "%d %s\n", n, what)
	return err
}

func skip(ctx context.Context, c command) error {
	lost, err := c.letters.SkipUnreadable(ctx, c.queue+".dlq")
	if lost != "" {
		fmt.Fprintln(c.out, "lost:", lost) // which is text to be printed
	}
	return err
}

// why is the reason, and who says so.
func why(l retry.DeadLetter) string {
	switch {
	case l.ByBroker:
		return l.Reason + " (broker)"
	case l.Reason == "":
		return "unknown"
	}
	return l.Reason
}

func when(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.Local().Format(time.DateTime)
}

// cell is text for a column: safe, never empty, and not too long.
func cell(s string, most int) string {
	s = safe(s)
	if s == "" {
		return "-"
	}
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most-3], "") + "..."
	}
	return s
}
