package idempotency

// ExplainRemoval is the plan of the statement that removes old keys from the table "inbox".
var ExplainRemoval = "EXPLAIN " + newStatements(Config{}.withDefaults()).remove
