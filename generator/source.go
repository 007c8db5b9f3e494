package generator

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
)

// source says where the parts of a resource that change often come from.
type source uint8

const (
	// fromServer: secrets from the agent's files; endpoints and routes over ADS.
	fromServer source = iota
	// inline: all of it in the one static configuration.
	inline
)

func overADS() *corev3.ConfigSource {
	return &corev3.ConfigSource{
		ResourceApiVersion:    corev3.ApiVersion_V3,
		ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
	}
}

func fromFile(path string) *corev3.ConfigSource {
	return &corev3.ConfigSource{
		ResourceApiVersion: corev3.ApiVersion_V3,
		ConfigSourceSpecifier: &corev3.ConfigSource_PathConfigSource{
			PathConfigSource: &corev3.PathConfigSource{Path: path},
		},
	}
}
