package redirect

import (
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/mdlayher/netlink"
	"github.com/mdlayher/netlink/nltest"
	"golang.org/x/sys/unix"

	"github.com/sonde-mesh/sonde/api/mesh"
)

func defaults() Options {
	return Options{
		OutboundPort: mesh.PortRedirectOut, InboundPort: mesh.PortRedirectIn, User: mesh.SidecarUser, Families: DualStack,
		ExcludeInboundPorts: []int{9000, 9800},
	}
}

// TestTextOf checks that each rule that Sonde writes is recognised.
func TestTextOf(t *testing.T) {
	for name, o := range tables() {
		for _, c := range newTable(&o) {
			for _, r := range c.rules {
				if got := textOf(r.exprs); got != r.text {
					t.Errorf("%s: textOf(%s) = %s", name, r.text, got)
				}
			}
		}
	}
}

// lacking is a kernel that rejects all messages that contain a text.
func lacking(text string, family byte, errno syscall.Errno) kernel {
	return kernel{fake: func(requests []netlink.Message) ([]netlink.Message, error) {
		var answers []netlink.Message
		for _, r := range requests {
			const begin, end = unix.NFNL_MSG_BATCH_BEGIN, unix.NFNL_MSG_BATCH_END
			if r.Header.Type == begin || r.Header.Type == end {
				continue
			}
			number := 0
			if r.Data[0] == family || (text != "" && strings.Contains(string(r.Data), text)) {
				number = int(errno)
			}
			answer, err := nltest.Error(number, []netlink.Message{r})
			if err != nil {
				return nil, err
			}
			answers = append(answers, answer...)
		}
		return answers, nil
	}}
}

func TestKernelLacks(t *testing.T) {
	const none = 0xff
	tests := map[string]struct {
		kernel kernel
		want   []string
	}{
		"nf_tables":     {lacking(TableName, none, syscall.EINVAL), []string{"the kernel lacks nftables (CONFIG_NF_TABLES)", "modprobe nf_tables"}},
		"the family":    {lacking("", unix.NFPROTO_INET, syscall.EOPNOTSUPP), []string{"the kernel lacks nftables of family inet", "CONFIG_NF_TABLES_INET"}},
		"NAT":           {lacking("nat\x00", none, syscall.ENOENT), []string{"the kernel lacks NAT in nftables of family inet (Linux 5.2)", "modprobe nft_chain_nat"}},
		"redirection":   {lacking("redir\x00", none, syscall.ENOENT), []string{"write table inet sonde", "no such file", "the kernel lacks redirection", "modprobe nft_redir"}},
		"NAT of probes": {lacking("\x01\x00nat\x00", none, syscall.ENOENT), []string{"the kernel lacks destination NAT in nftables (CONFIG_NFT_NAT)", "modprobe nft_nat"}},
		"tracking":      {lacking("ct\x00", none, syscall.ENOENT), []string{"the kernel lacks connection tracking in nftables (CONFIG_NFT_CT)", "modprobe nft_ct"}},
		"resets":        {lacking("reject\x00", none, syscall.ENOENT), []string{"the kernel lacks resets in nftables of family inet", "modprobe nft_reject_inet"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			o := defaults()
			o.TCPProbes = []TCPProbe{{9001, 6853}}
			err := tc.kernel.install(o)
			if err == nil {
				t.Fatal("Install() = nil")
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("Install() = %v, want %q in it", err, want)
				}
			}
		})
	}
}

// TestUnknownRefusal returns an error without a known cause: explain must not guess.
func TestUnknownRefusal(t *testing.T) {
	err := lacking("lo\x00", 0xff, syscall.ENOSPC).install(defaults())
	if !errors.Is(err, syscall.ENOSPC) || strings.Contains(err.Error(), "lacks") {
		t.Errorf("Install() = %v, want the error of the kernel alone", err)
	}
}

// answering is a kernel that returns an error for each message.
func answering(err error) kernel {
	return kernel{fake: func([]netlink.Message) ([]netlink.Message, error) { return nil, err }}
}

// TestNoNetlink is a kernel, or a sandbox that simulates one, without netlink for netfilter.
func TestNoNetlink(t *testing.T) {
	err := answering(syscall.EPROTONOSUPPORT).install(defaults())
	if !errors.Is(err, syscall.EPROTONOSUPPORT) || !strings.Contains(err.Error(), "the kernel lacks nftables (CONFIG_NF_TABLES)") {
		t.Errorf("Install() = %v", err)
	}
}

// TestSmallBuffers has more rules than fit into the default socket buffers of a user namespace.
func TestSmallBuffers(t *testing.T) {
	for name, err := range map[string]error{"sending": syscall.EMSGSIZE, "receiving": syscall.ENOBUFS} {
		if err := answering(err).install(defaults()); err == nil || !strings.Contains(err.Error(), "too many excluded ports") {
			t.Errorf("%s: Install() = %v", name, err)
		}
	}
}

// TestWithoutCapability makes the kernel deny permission.
func TestWithoutCapability(t *testing.T) {
	k := answering(syscall.EPERM)
	_, uninstall := k.uninstall()
	_, check := k.check(defaults())
	for name, err := range map[string]error{"Install": k.install(defaults()), "Uninstall": uninstall, "Check": check} {
		if err == nil || !strings.Contains(err.Error(), "needs the capability NET_ADMIN") {
			t.Errorf("%s() = %v, want an error that names the capability", name, err)
		}
	}
}
