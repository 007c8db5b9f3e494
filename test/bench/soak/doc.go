// Package soak changes a mesh at random for minutes, with many kinds of faults. Proxies connect and disconnect, stop
// reading, stop responding, refuse resources, or vanish. Files are broken, half written, renamed and removed. The
// control plane is killed every minute. From time to time everything is repaired: then each proxy must have the
// configuration of the files, including proxies that start without state. At the end, the control plane must keep
// nothing of disconnected proxies.
//
//	go test -tags soak ./bench/soak -run TestSoak -v -soak 10m -timeout 0
//	# Repeat a seed, and keep the journal, the logs and the files:
//	go test -tags soak ./bench/soak -run TestSoak -v -soak 2m -seed 7 -artifacts
//
// It takes minutes, and is only built with the tag soak. A seed determines each operation and its time, but not how
// the kernel schedules processes.
package soak
