package rpc

import amqp "github.com/rabbitmq/amqp091-go"

// What client and server say to each other beside the body. A plain request and a plain answer carry as little as possible,
// since each header costs more than all properties together.
const (
	// directReply is what a client consumes and names as ReplyTo; the broker puts the channel's own address, which begins
	// with directReplyPrefix, in its place.
	directReply       = "amq.rabbitmq.reply-to"
	directReplyPrefix = directReply + "."

	// headerDeadline is when the caller stops waiting, by the caller's clock: milliseconds since 1970, an int64. The time
	// that was left when the request was sent is its Expiration, after which the broker hands it to nobody. So the header can
	// only matter where more than clockSkew was left, and otherwise is not sent: it would cost a tenth of a call's allocations.
	headerDeadline = "warren-deadline"
	// headerIdempotent is true on requests that may be executed again.
	headerIdempotent = "warren-idempotent"
	// headerLimited is true on answers of servers whose queue refuses requests when it is full.
	headerLimited = "warren-limited"
	// headerKind is one of the kinds below. Plain requests and answers have none.
	headerKind = "warren-rpc"
)

const (
	kindCancellable = "cancellable" // request: tell me where to send a cancel
	kindError       = "error"       // reply: the body is a remoteError
	kindUnknown     = "unknown"     // reply: another server had the request and may have executed it
	kindRefused     = "refused"     // reply: the queue was full when the server handed the request back, unexecuted
	kindStarted     = "started"     // to a cancellable request: its ReplyTo takes the cancel
	kindCancel      = "cancel"      // the call with this CorrelationId is over
)

func kindOf(t amqp.Table) string {
	if len(t) == 0 {
		return ""
	}
	kind, _ := t[headerKind].(string)
	return kind
}

// remoteError is the body of an answer of kindError.
type remoteError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Details []byte `json:"details,omitempty"`
}
