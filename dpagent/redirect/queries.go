package redirect

import (
	"fmt"
	"syscall"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

const (
	// othersAtMost limits the tables, chains and rules of other programs that a query reads. A container with NET_ADMIN
	// can create millions, and one daemon serves all pods of a node.
	othersAtMost = 2000
	// partBytes holds one part of the kernel's answer, which has at most 32 KiB.
	partBytes = 64 << 10
	// messageBytes is more than the average size of a message.
	messageBytes = 1 << 10
)

// queries returns a connection that reads at most othersAtMost messages more than rules, since nftables.Conn reads
// answers of any size.
func (k kernel) queries(rules int) (*nftables.Conn, error) {
	if k.fake != nil {
		return k.conn()
	}
	q := query{k.namespace, rules + othersAtMost}
	return nftables.New(nftables.WithTestDial(q.exchange))
}

// query is a bounded exchange with the kernel.
type query struct{ namespace, most int }

// exchange sends a request, and returns all messages of its answer. nftables.Conn sends one request at a time.
func (q query) exchange(requests []netlink.Message) (answer []netlink.Message, err error) {
	if len(requests) != 1 {
		return nil, fmt.Errorf("query nftables: %d requests, must be one", len(requests))
	}
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: q.namespace})
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.Close() }()
	if err := setLimits(c); err != nil {
		return nil, err
	}
	request := requests[0]
	request.Header.PID = 0 // the kernel's answer is for c
	if _, err := c.Send(request); err != nil {
		return nil, err
	}
	for size := 0; ; {
		part, err := receive(c)
		if err != nil {
			return nil, err
		}
		size += len(part)
		messages, err := syscall.ParseNetlinkMessage(part)
		if err != nil {
			return nil, fmt.Errorf("parse the kernel's answer: %w", err)
		}
		if len(answer)+len(messages) > q.most || size > q.most*messageBytes {
			return nil, fmt.Errorf("too many tables, chains or rules of family inet: must be at most %d, in %d bytes",
				q.most, q.most*messageBytes)
		}
		for _, m := range messages {
			h := netlink.Header{Length: m.Header.Len, Type: netlink.HeaderType(m.Header.Type),
				Flags: netlink.HeaderFlags(m.Header.Flags), Sequence: m.Header.Seq, PID: requests[0].Header.PID}
			answer = append(answer, netlink.Message{Header: h, Data: m.Data})
			if h.Flags&netlink.Multi == 0 || h.Type == netlink.Done {
				return answer, nil
			}
		}
	}
}

// receive returns one part of an answer.
func receive(c *netlink.Conn) ([]byte, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	part, n := make([]byte, partBytes), 0
	var readErr error
	if err := raw.Read(func(fd uintptr) bool {
		n, _, readErr = unix.Recvfrom(int(fd), part, unix.MSG_TRUNC)
		return readErr != unix.EAGAIN && readErr != unix.EINTR
	}); err != nil {
		return nil, err
	}
	switch {
	case readErr != nil:
		return nil, readErr
	case n > len(part):
		return nil, fmt.Errorf("the kernel's answer has a part of %d bytes, must have at most %d", n, len(part))
	}
	return part[:n], nil
}
