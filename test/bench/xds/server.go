package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"strconv"
	"strings"

	"google.golang.org/grpc"
)

// serveSubject prints its address and serves until the input ends. It answers each line of the input: a change of a
// service, or a command that all subjects know.
func serveSubject(ctx context.Context, server *grpc.Server, change func(service int) error) error {
	var config net.ListenConfig
	l, err := config.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	fmt.Println(l.Addr())
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		if err := command(strings.Fields(lines.Text()), change); err != nil {
			return fmt.Errorf("%s: %w", lines.Text(), err)
		}
		fmt.Println("ok")
	}
	server.Stop()
	return errors.Join(lines.Err(), <-served)
}

// profile is the current CPU profile.
var profile io.Closer

func command(words []string, change func(service int) error) error {
	switch words[0] {
	case "change":
		service, err := strconv.Atoi(words[1])
		if err != nil {
			return err
		}
		return change(service)
	case "collect":
		for range 4 { // each collection halves stacks of which little is used
			runtime.GC()
		}
		debug.FreeOSMemory()
		return nil
	case "profile":
		return startProfile(words[1])
	case "heap":
		return writeHeap(words[1])
	case "profiled":
		pprof.StopCPUProfile()
		return profile.Close()
	}
	return errors.New("unknown command")
}

func startProfile(path string) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	profile = file
	return pprof.StartCPUProfile(file)
}

func writeHeap(path string) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	runtime.GC()
	return errors.Join(pprof.WriteHeapProfile(file), file.Close())
}
