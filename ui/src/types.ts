// What sondectl serves: cmd/sondectl/dashboard has the same types in Go.

export type State = 'failing' | 'held' | 'restarting' | 'errored' | 'cannot fail' | 'warning' | 'not reported' | 'not checked' | 'passing' | 'no probe';
export type Level = 'bad' | 'warn' | 'unknown' | 'good' | 'none';
// Shape is a level, or a lie: a probe that cannot fail.
export type Shape = Level | 'lie';

export interface Section {
  readAt?: string;
  error?: string;
  denied?: boolean;
  absent?: boolean;
  due?: string;
  revision?: string;
}

export type Name = 'problems' | 'workloads' | 'services' | 'proxies' | 'restarts' | 'watchdog' | 'controlplane';

export interface Index {
  now: string;
  due: string;
  version: string;
  sections: Record<Name, Section>;
}

export interface Problem {
  severity: 'critical' | 'error' | 'warning' | 'note';
  mesh?: string;
  objects: string[];
  what: string;
  since?: string;
  notes?: string[];
  do: string;
}

export interface Problems {
  ok: boolean;
  summary: string;
  problems: Problem[];
  leftOut?: number;
}

export interface Change {
  at: string;
  state: State;
}

export interface Finding {
  instance: string;
  container?: string;
  state: State;
  probe?: string;
  kubelet?: string;
  asks?: string;
  since?: string;
  sinceAtLeast?: boolean;
  changes?: Change[];
  earlierChanges?: number;
  reason?: string;
  do?: string;
}

export interface Cell {
  state: State;
  count?: number;
  total?: number;
  since?: string;
  sinceAtLeast?: boolean;
  findings?: Finding[];
  leftOut?: number;
  unreported?: string;
}

export const kinds = ['startup', 'liveness', 'readiness'] as const;
export type Kind = (typeof kinds)[number];

export type Workload = {mesh: string; namespace?: string; name: string; instances: number} & Record<Kind, Cell>;

export interface Rows<Row> {
  rows: Row[];
  leftOut?: number;
}

export interface Endpoint {
  address: string;
  dataplane?: string;
  node?: string;
  health: string;
  level: Level;
  traffic: boolean;
  sidecar: boolean;
  unchecked?: boolean;
  reason?: string;
  lost?: string;
}

export interface Service {
  mesh: string;
  name: string;
  protocol: string;
  level: Level;
  ready: number;
  serving: number;
  total: number;
  unchecked?: number;
  frozen?: number;
  without?: string;
  reasons?: string[];
  endpoints?: Endpoint[];
  leftOut?: number;
}

export interface Proxy {
  mesh: string;
  name: string;
  level: Level;
  agent: string;
  since?: string;
  envoy: boolean;
  synced: number;
  types: number;
  notes?: string[];
  nacks?: {kind: string; resource: string; reason: string; at?: string}[];
  certificate?: string;
  version?: string;
  envoyVersion?: string;
}

export interface Restart {
  namespace: string;
  pod: string;
  container: string;
  workload: string;
  state: string;
  level: Level;
  since?: string;
  why?: string;
  failure?: string;
  count?: number;
  limit?: number;
  needs?: string;
  do: string;
}

export interface Restarts {
  kubernetes: boolean;
  guarded: number;
  round?: {replica: string; epoch: number; at?: string; mode: string; open: boolean; namespace?: string; failed: number; workloads: number};
  notes?: string[];
  unhelpful?: string[];
  rows: Restart[];
  leftOut?: number;
}

export interface Check {
  group: string;
  name: string;
  level: Level;
  reason?: string;
  changes?: {at?: string; level: Level; reason?: string}[];
}

export interface Plane {
  checks: Check[];
  leader?: string;
  missing?: string[];
  agents?: {version: string; count: number}[];
  envoys?: {version: string; count: number}[];
}

export interface Ref {
  apiVersion: string;
  kind: string;
  name: string;
}

// Zone is all nodes if it has no name.
export interface Zone {
  zone?: string;
  nodes: number;
  silent: number;
  unheard: number;
  verdict?: string;
  cause?: string;
}

export interface Dependant {
  ref: Ref;
  replicas?: number;
  before?: number;
  step?: string;
  next: string;
  waitsFor?: Ref[];
  note?: string;
}

export interface Watched {
  namespace: string;
  name: string;
  paused: boolean;
  verdict?: string;
  cause?: string;
  since?: string;
  lostSince?: string;
  why: string;
  next: string;
  refused?: string;
  failed?: string;
  nodes?: Zone[];
  dependants?: Dependant[];
  level: Level;
  scaled?: number;
  total: number;
  unread?: boolean;
  do: string;
}

export interface Contents {
  problems: Problems;
  workloads: Rows<Workload>;
  services: Rows<Service>;
  proxies: Rows<Proxy>;
  restarts: Restarts;
  watchdog: {rows: Watched[]; more?: boolean};
  controlplane: Plane;
}
