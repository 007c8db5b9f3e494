// Package hostile attacks Sonde's programs as strangers and members of the mesh could, while other clients use them.
package hostile
