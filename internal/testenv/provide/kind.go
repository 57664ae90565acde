package provide

// Kind is a way to come by a broker and a database.
type Kind string

// The kinds, in the order in which they are tried when none is asked for.
const (
	URL       Kind = "url"       // AMQP_URL, DATABASE_URL
	Container Kind = "container" // a Docker engine
	Local     Kind = "local"     // the machine's own binaries
)
