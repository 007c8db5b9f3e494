// This file is empty: it lets the compiler accept functions without a body, which go:linkname finds elsewhere.
