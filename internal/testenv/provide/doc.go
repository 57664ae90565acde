// Package provide finds or starts the RabbitMQ broker and the PostgreSQL database that tests and examples run
// against. It knows three kinds of providers, chosen by WARREN_BROKER or, when that is unset, the first that is there:
//
//	url        AMQP_URL and DATABASE_URL: servers somebody else runs
//	container  a Docker engine that has, or can pull, WARREN_RABBITMQ_IMAGE and WARREN_POSTGRES_IMAGE
//	local      the machine's own rabbitmq-server and postgres binaries, as private instances in a temporary directory
//
// What it starts listens on loopback only, on free ports, and ends with the process that started it, however that
// ends. A node it starts also answers [RabbitMQ.Eval], by which the fault tools of package testenv look into it and
// break it within milliseconds, where rabbitmqctl would take a second.
//
// Package testenv is the face of this for tests; the suite's runner and the examples use this package directly.
package provide
