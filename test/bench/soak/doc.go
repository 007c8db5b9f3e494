// Package soak changes a mesh at random for minutes and breaks what can break. Proxies come and go, stop reading, stop answering, refuse
// resources, or vanish. Files are broken, half written, renamed and removed. The control plane is killed every minute. From time to time
// everything is mended: then each proxy must have what the files say, and some that begin with nothing, too. At the end the control plane
// must hold nothing of proxies that are gone.
//
//	go test -tags soak ./bench/soak -run TestSoak -v -soak 10m -timeout 0
//	go test -tags soak ./bench/soak -run TestSoak -v -soak 2m -seed 7 -artifacts # repeat a seed, and keep the journal, the logs and the files
//
// It takes minutes, and is built with the tag soak alone. A seed decides each operation and when it is due, but not how processes are scheduled.
package soak
