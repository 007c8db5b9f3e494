import {computed} from '@preact/signals';
import {isBlind, now} from './source';

const minute = 60_000;
const hour = 60 * minute;
const day = 24 * hour;

// short is a duration in one unit, as sondectl prints it.
export function short(milliseconds: number): string {
  const d = Math.max(0, milliseconds);
  if (d >= 2 * day) return `${Math.floor(d / day)}d`;
  if (d >= 2 * hour) return `${Math.floor(d / hour)}h`;
  if (d >= 2 * minute) return `${Math.floor(d / minute)}m`;
  return `${Math.floor(d / 1000)}s`;
}

export const clock = (at: number | string) => new Date(at).toLocaleTimeString([], {hour12: false});

// asOf is when the page's state was read, if that is old: ages do not go on while the page is blind.
export const asOf = computed(() => isBlind.value?.since || now.value);

// Ago is how long ago a time was.
export function Ago({at}: {at?: string}) {
  if (!at) return null;
  return (
    <time dateTime={at} title={new Date(at).toLocaleString()}>
      {short(asOf.value - Date.parse(at))}
    </time>
  );
}

// Until is how long it is until a time.
export function Until({at}: {at?: string}) {
  if (!at) return null;
  const left = Date.parse(at) - asOf.value;
  return (
    <time dateTime={at} title={new Date(at).toLocaleString()}>
      {left > 0 ? short(left) : 'expired'}
    </time>
  );
}
