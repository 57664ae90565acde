package coalesce

// HasRoom reports whether no more than the soft limit is gathered, and the connection is not over: WaitRoom would return
// nil at once.
func (c *Conn) HasRoom() bool { return c.load.Load() <= c.soft }
