package idempotency

// ExplainRemoval is the plan of the statement that removes old keys from the table "inbox".
var ExplainRemoval = "EXPLAIN " + newStatements(Config{}.withDefaults()).remove

// ExplainClaim counts what the statement that claims keys in the table "inbox" writes.
func ExplainClaim(uuids bool) string {
	return "EXPLAIN (ANALYZE, WAL, FORMAT JSON) " + newStatements(Config{UUIDKeys: uuids}.withDefaults()).claim
}
