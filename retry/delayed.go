package retry

// The plugin's exchange type, and the header that holds a message's delay in milliseconds.
const (
	delayedKind   = "x-delayed-message"
	delayedPlugin = "rabbitmq_delayed_message_exchange"
	delayHeader   = "x-delay"
)
