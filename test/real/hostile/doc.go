// Package hostile attacks the real programs as strangers and members of the mesh could, while others go on to use them.
package hostile
