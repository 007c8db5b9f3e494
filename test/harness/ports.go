package harness

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

// Ports come in blocks below the kernel's range of ephemeral ports. A harness listens on the first port of its block
// as a lock, so that two harnesses never use the same port. If the harness dies, the kernel releases the lock.
const (
	firstBlock, lastBlock = 100, 319
	blockSize             = 100
	// sidecarBlock contains the fixed ports of a pod's sidecar: 15001, 15006, 15022.
	sidecarBlock = 150
)

// ports hands out TCP ports of 127.0.0.1 that are free on this machine.
type ports struct {
	lock net.Listener

	mu   sync.Mutex
	next int // the port to try next
	end  int // the first port after the block
}

func newPorts() (*ports, error) {
	for range 100 {
		block := firstBlock + rand.IntN(lastBlock-firstBlock+1)
		if block == sidecarBlock {
			continue
		}
		base := block * blockSize
		if lock, err := listen(base); err == nil {
			return &ports{lock: lock, next: base + 1, end: base + blockSize}, nil
		}
	}
	return nil, errors.New("find free ports: none of 100 blocks tried is free")
}

// take returns a port that was free a moment ago. It returns each port only once.
func (p *ports) take() (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for ; p.next < p.end; p.next++ {
		l, err := listen(p.next)
		if err != nil {
			continue
		}
		if err := l.Close(); err != nil {
			return 0, err
		}
		port := p.next
		p.next++
		return port, nil
	}
	return 0, fmt.Errorf("find a free port: all %d of this mesh are in use", blockSize)
}

// takeAddress is like take, and returns an address 127.0.0.1:port.
func (p *ports) takeAddress() (string, error) {
	port, err := p.take()
	return address(port), err
}

// FreeAddresses returns n addresses 127.0.0.1:port, at most 99. Until the caller calls release, no other harness
// takes them, and the kernel does not use them for outgoing connections.
func FreeAddresses(n int) (addresses []string, release func() error, err error) {
	p, err := newPorts()
	if err != nil {
		return nil, nil, err
	}
	for range n {
		a, err := p.takeAddress()
		if err != nil {
			return nil, nil, errors.Join(err, p.close())
		}
		addresses = append(addresses, a)
	}
	return addresses, p.close, nil
}

func (p *ports) close() error { return p.lock.Close() }

func listen(port int) (net.Listener, error) {
	return (&net.ListenConfig{}).Listen(context.Background(), "tcp", address(port))
}

func address(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// portOf returns the port of an address such as "127.0.0.1:80".
func portOf(address string) string {
	_, port, _ := net.SplitHostPort(address)
	return port
}
