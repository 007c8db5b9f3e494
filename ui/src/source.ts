import {batch, computed, signal} from '@preact/signals';
import {takeToken, view} from './route';
import type {Contents, Index, Name, Section} from './types';

// sondectl answers when something has changed. It is asked again after a moment, so that it may send several changes at once, and after one that
// failed later.
const askAfter = 100;
const failedAfter = 500;
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

// asking is aborted when the page needs another answer at once.
let asking = new AbortController();

class Refused extends Error {}
class Answered extends Error {}

// Row is a row of a patch: one that is new, or [from, count] of the rows before.
type Row = object | [number, number];
type Answer<T> = Section & {data?: T; patch?: T & {rows: Row[]}};

// patched returns what a patch makes of the data before. Rows that have not changed are the same objects.
function patched<T>({data, patch}: Answer<T>, before: T | undefined): T {
  if (!patch) return data!;
  const old = (before as {rows: object[]}).rows;
  return {...patch, rows: patch.rows.flatMap((row) => (Array.isArray(row) ? old.slice(row[0], row[0] + row[1]) : [row]))};
}

async function get<T>(path: string): Promise<T> {
  const response = await fetch(`/api/${path}`, {headers: {authorization: `Bearer ${token}`}, signal: AbortSignal.any([AbortSignal.timeout(patience), asking.signal])});
  const body = await response.json();
  if (response.status === 401 || response.status === 403) throw new Refused(body.error);
  if (!response.ok) throw new Answered(body.error);
  return body;
}

// ask takes over what has changed all at once, so that no part is newer than what is said of it. It returns false if sondectl has not answered.
async function ask(): Promise<boolean> {
  asking = new AbortController();
  try {
    const shown = loaded.value[view.value]?.revision === section(view.value).revision; // else the answer must not wait for a change
    const next = await get<Index>(`state?have=${(shown && index.value?.version) || ''}`);
    const fresh: Loaded = {...loaded.value};
    const load = async <N extends Name>(name: N) => {
      const revision = next.sections[name].revision;
      const has = loaded.value[name];
      if (revision && has?.revision !== revision) {
        // It may be of a later reading than the index, and says so itself.
        const answer = await get<Answer<Contents[N]>>(`section/${name}?have=${has?.revision ?? ''}`);
        const {data, patch, ...section} = answer;
        next.sections[name] = section;
        if (section.revision) (fresh[name] as {revision: string; data: Contents[N]}) = {revision: section.revision, data: patched(answer, has?.data)};
      }
    };
    await Promise.all([...new Set<Name>(['problems', view.value])].map((name) => load(name)));
    batch(() => {
      index.value = next;
      loaded.value = fresh;
      ahead.value = Date.now() - Date.parse(next.now);
      away.value = '';
    });
    now.value = Date.now();
    return true;
  } catch (error) {
    if (asking.signal.aborted) return true;
    if (error instanceof Refused) refused.value = error.message;
    else if (error instanceof Answered) away.value = `sondectl dashboard: ${error.message}`;
    else away.value = 'sondectl dashboard does not answer: it may have ended.';
  }
  now.value = Date.now();
  return false;
}

let wake = () => {};
const wakeUp = () => {
  asking.abort();
  wake();
};
addEventListener('hashchange', wakeUp);
document.addEventListener('visibilitychange', wakeUp);

// watch asks as long as somebody sees the page.
export async function watch() {
  while (!refused.value) {
    let after = failedAfter;
    if (!document.hidden) {
      if (await ask()) after = askAfter;
      if (asking.signal.aborted) continue;
    }
    await new Promise<void>((resolve) => {
      wake = resolve;
      setTimeout(resolve, after);
    });
  }
}
