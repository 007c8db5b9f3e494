import {batch, computed, signal} from '@preact/signals';
import {takeToken, view} from './route';
import type {Contents, Index, Name, Section} from './types';

// How often sondectl is asked whether something has changed. It asks the control plane once a second.
const askEvery = 500;
const patience = 5000;

const token = takeToken();

// now in milliseconds, each second.
export const now = signal(Date.now());
setInterval(() => (now.value = Date.now()), 1000);

// refused is why sondectl does not accept the page, for good.
export const refused = signal(token ? '' : 'This address lacks the token: open the one that sondectl dashboard printed.');

// away is why sondectl does not answer.
const away = signal('');
const index = signal<Index | null>(null);
// ahead is how much the clock of this page is ahead of sondectl's, in milliseconds.
const ahead = signal(0);

type Loaded = {[N in Name]?: {revision: string; data: Contents[N]}};
const loaded = signal<Loaded>({});

export const section = (name: Name): Section => index.value?.sections[name] ?? {};

// content is undefined while it is older than what the index says: a view that was left shows nothing old.
export function content<N extends Name>(name: N): Contents[N] | undefined {
  const has = loaded.value[name];
  return has && has.revision === section(name).revision ? has.data : undefined;
}

// blind says since when a section is not known, and why; null while it is current.
export function blind(name: Name): {since: number; why: string} | null {
  const {readAt, error, denied, absent, due} = section(name);
  if (!index.value && !away.value) return null; // it begins
  if (denied || absent) return null; // the view says so
  const since = readAt ? Date.parse(readAt) : 0;
  if (away.value) return {since, why: away.value};
  if (error) return {since, why: error};
  const latest = due ?? index.value?.due;
  if (latest && now.value > Date.parse(latest) + ahead.value) return {since, why: `The ${due ? 'API server' : 'control plane'} has not answered since.`};
  return null;
}

// The watchdog's view is read from the API server, and is current although the control plane does not answer.
export const isBlind = computed(() => (view.value === 'watchdog' ? null : blind('problems')) ?? blind(view.value));

// isUnknown means that the verdict at the top may be old.
export const isUnknown = computed(() => !!(isBlind.value ?? blind('problems')));

class Refused extends Error {}
class Answered extends Error {}

async function get<T>(path: string): Promise<T> {
  const response = await fetch(`/api/${path}`, {headers: {authorization: `Bearer ${token}`}, signal: AbortSignal.timeout(patience)});
  const body = await response.json();
  if (response.status === 401 || response.status === 403) throw new Refused(body.error);
  if (!response.ok) throw new Answered(body.error);
  return body;
}

// ask takes over what has changed all at once, so that no part is newer than what is said of it.
async function ask() {
  try {
    const next = await get<Index>('state');
    const fresh: Loaded = {...loaded.value};
    const load = async <N extends Name>(name: N) => {
      const revision = next.sections[name].revision;
      if (revision && loaded.value[name]?.revision !== revision) {
        // It may be of a later reading than the index, and says so itself.
        const {data, ...section} = await get<Section & {data: Contents[N]}>(`section/${name}`);
        next.sections[name] = section;
        if (section.revision) (fresh[name] as {revision: string; data: Contents[N]}) = {revision: section.revision, data};
      }
    };
    await Promise.all([...new Set<Name>(['problems', view.value])].map((name) => load(name)));
    batch(() => {
      index.value = next;
      loaded.value = fresh;
      ahead.value = Date.now() - Date.parse(next.now);
      away.value = '';
    });
  } catch (error) {
    if (error instanceof Refused) refused.value = error.message;
    else if (error instanceof Answered) away.value = `sondectl dashboard: ${error.message}`;
    else away.value = 'sondectl dashboard does not answer: it may have ended.';
  }
  now.value = Date.now();
}

let wake = () => {};
addEventListener('hashchange', () => wake());
document.addEventListener('visibilitychange', () => wake());

// watch asks as long as somebody sees the page.
export async function watch() {
  while (!refused.value) {
    if (!document.hidden) await ask();
    await new Promise<void>((resolve) => {
      wake = resolve;
      setTimeout(resolve, askEvery);
    });
  }
}
