// Package reconnect is a RabbitMQ connection that survives, and publishing on it that tells the truth: it dials again after
// every loss, puts the topology back, hands each worker a channel of its own, and says of each message what became of it.
// The patterns of this module stand on it; it serves as well on its own.
//
//	                 ┌─ link "publishing" ── Publisher ── confirm channels ─┐
//	Dial ── Conn ────┤                                                      ├── RabbitMQ
//	                 └─ link "consuming" ─── Supervise ── channel, channel ─┘
//
// Each link is one connection, dialed when first needed: a broker in a resource alarm stops reading from whoever
// publishes, and must not stop acknowledgements with that.
//
//	conn, err := reconnect.Dial(ctx, "amqp://guest:guest@localhost:5672/", reconnect.Config{Name: "billing"})
//	if err != nil { … }
//	defer conn.Close(context.Background())
//	err = conn.Declare(ctx, reconnect.Topology{Queues: []reconnect.Queue{{Name: "invoices"}}})
//	publisher, err := conn.NewPublisher(reconnect.PublisherConfig{})
//	err = publisher.Publish(ctx, "", "invoices", amqp.Publishing{Body: body}) // nil: the broker has it safely
//
// # Guarantees
//
// Publish returns nil once the broker has confirmed the message, which is persistent and mandatory unless told otherwise.
// Every other outcome is an error that says whether sending again may duplicate:
//
//	outcome                                            error                             again may duplicate
//	confirmed                                          nil
//	no queue took it                                   *ReturnedError                    no
//	a queue refused it: full, or failed inside         ErrRefused                        no; yes behind several queues
//	the broker closed the channel because of it        *amqp.Error 403, 404, 406         no
//	the link, ctx or ConfirmTimeout ended meanwhile    ErrUnknown and the cause          yes
//	the same under a resource alarm                    ErrUnknown and ErrBlocked         yes
//	a resource alarm, and not yet written              ErrBlocked and the cause          no
//	bad input, closed, ctx ended first, too many wait  the reason, ErrClosed, ErrBusy    no
//
// While its context lives, Publish waits through reconnects and sends what is in doubt again with the same MessageId, only
// after its channel was lost. Nothing waits longer than its context, in an alarm or with a frozen broker included; a
// silent peer is noticed within three heartbeats.
//
// # Topology
//
// Exchanges, queues and bindings are data. What was declared is declared again on each new connection before a channel of
// it is handed out, in a stable order; what fails holds back only those who name it. Exclusive queues live on the consuming
// link. What an operator owns is only looked at (Passive), or not even that (Skip). Nothing is ever deleted, but for
// bindings listed as obsolete.
//
// # Reconnection
//
// At once after a loss, then with jittered backoff, unlimited, over every address of every host, with credentials and
// certificates asked for anew. Each connection and channel is a new object, so that what belongs to a lost one can only
// fail, never settle another message. State and OnState show each link and each supervised function, and why it waits.
//
// # Errors
//
// The driver's *amqp.Error and the context's errors stay reachable with errors.As and errors.Is. What has the method
// Permanent() bool, returning true, is of no use to try again: *TopologyError, bad input, a message too large for the
// broker. No error and no log line contains a URL or a password.
//
// # Telemetry
//
// Config takes a logger and OpenTelemetry's providers for everything on the Conn: a span for each publish and each call of a
// handler, in one trace; metrics of outcomes, times, links and what waits; log lines with stable keys. Without a provider
// they cost nothing. Their names are listed in docs/telemetry.md. Verify compares a topology with what is on the broker.
//
// # Concurrency
//
// Conn and Publisher are safe for any number of goroutines, and many callers on one Publisher are the fast way. A channel
// handed out belongs to one function. Close ends everything, within its context and 30 s, and leaves no goroutine.
package reconnect
