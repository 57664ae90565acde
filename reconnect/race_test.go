//go:build race

package reconnect

const raceEnabled = true
