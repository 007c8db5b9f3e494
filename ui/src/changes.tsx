import {levelOf} from './marks';
import {Ago, asOf, clock} from './time';
import type {Change, Finding, Shape} from './types';

// The strip is as wide as its room; these are the units of its drawing.
const width = 600;
const height = 20;
const least = 10; // of one change, to be seen beside one of days

const day = 24 * 60 * 60_000;

// The heights differ, so that a level shows without its colour.
const top: Record<Shape, number> = {bad: 0, warn: 6, lie: 6, unknown: 10, good: 14, none: 14};

// widths are in proportion to the durations, as far as each can be seen.
function widths(durations: number[]): number[] {
  const sum = durations.reduce((a, b) => a + b, 0);
  const room = width - least * durations.length;
  return durations.map((d) => least + (sum ? (d / sum) * room : room / durations.length));
}

const when = (at: string): string => (asOf.value - Date.parse(at) < day ? clock(at) : new Date(at).toLocaleString([], {hour12: false}));

// Changes are the last changes of a probe, as a strip over time and as text.
export function Changes({finding}: {finding: Finding}) {
  const changes: Change[] = finding.changes ?? [];
  if (!changes.length) return null;
  const starts = changes.map((c) => Date.parse(c.at));
  const parts = widths(starts.map((start, i) => Math.max(0, (starts[i + 1] ?? asOf.value) - start)));
  let x = 0;
  return (
    <figure class="changes">
      <svg class="strip" viewBox={`0 0 ${width} ${height}`} preserveAspectRatio="none" aria-hidden="true">
        {changes.map((c, i) => {
          const part = parts[i]!;
          const level = levelOf[c.state];
          const rect = <rect key={i} class={level} x={x + 1} y={top[level]} width={part - 2} height={height - top[level]} />;
          x += part;
          return rect;
        })}
      </svg>
      <figcaption>
        Last changes, until now
        {finding.earlierChanges ? `, after ${finding.earlierChanges} others` : ''}:
      </figcaption>
      <ol>
        {changes.map((c, i) => (
          <li key={i}>
            {c.state} since {i === 0 && !finding.earlierChanges && 'at least '}
            <time dateTime={c.at}>{when(c.at)}</time>
            {i === changes.length - 1 && (
              <>
                {' '}
                (<Ago at={c.at} />)
              </>
            )}
          </li>
        ))}
      </ol>
    </figure>
  );
}
