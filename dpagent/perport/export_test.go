package perport

// MaxVisitors is how many connections a port may have at once.
const MaxVisitors = maxVisitors
