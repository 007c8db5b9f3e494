package perport

// MaxVisitors is the maximum number of connections of a port.
const MaxVisitors = maxVisitors
