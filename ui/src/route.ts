import {computed, signal} from '@preact/signals';
import type {Name} from './types';

// The address bar keeps the view and its filters: #/workloads?q=web&state=failing

export const views: {name: Name; title: string}[] = [
  {name: 'workloads', title: 'Workloads'},
  {name: 'services', title: 'Services'},
  {name: 'proxies', title: 'Proxies'},
  {name: 'restarts', title: 'Restarts'},
  {name: 'watchdog', title: 'Watchdog'},
  {name: 'controlplane', title: 'Control plane'},
  {name: 'problems', title: 'Problems'},
];

const withToken = /^#token=([\w-]+)$/;

const hash = signal(location.hash);
addEventListener('hashchange', () => {
  if (withToken.test(location.hash)) location.reload(); // it was pasted over the address of this page
  else hash.value = location.hash;
});

const parsed = computed(() => {
  const [path = '', query] = hash.value.replace(/^#\/?/, '').split('?', 2);
  return {view: views.find((v) => v.name === path)?.name ?? 'workloads', params: new URLSearchParams(query)};
});

export const view = computed<Name>(() => parsed.value.view);

export const param = (name: string): string => parsed.value.params.get(name) ?? '';

// setParams changes parameters in place; an empty value removes one.
export function setParams(change: Record<string, string>) {
  const {view, params} = parsed.value;
  const next = new URLSearchParams(params);
  for (const [name, value] of Object.entries(change)) {
    if (value) next.set(name, value);
    else next.delete(name);
  }
  const query = next.toString();
  history.replaceState(null, '', `#/${view}${query && `?${query}`}`);
  hash.value = location.hash;
}

const storageKey = 'sonde-token';

// takeToken returns the token of the address or of this tab, and removes it from the address at once.
export function takeToken(): string {
  const token = withToken.exec(location.hash)?.[1];
  if (token) {
    sessionStorage.setItem(storageKey, token);
    history.replaceState(null, '', '#/workloads');
    hash.value = location.hash;
  }
  return token ?? sessionStorage.getItem(storageKey) ?? '';
}
