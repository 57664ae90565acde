//go:build !race

package reconnect

const raceEnabled = false
