//go:build !race

package slowtest

const raced = false
