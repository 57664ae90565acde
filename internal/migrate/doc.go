// Package migrate brings the tables of outbox and idempotency to the form that the library's version needs, whatever form
// they have now and whoever else is doing the same, or prints the statements for somebody who does it with a tool of their
// own.
//
// A Schema is made of units, each a list of steps; step n of a unit brings it from version n to n+1. What has been applied
// stands in a table of its own, so that each step runs once. A unit is what comes and goes as a whole: the tables that
// there is one of, and each of those that there can be more of later.
package migrate
