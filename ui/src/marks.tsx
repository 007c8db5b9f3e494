import type {Level, Shape, State} from './types';

export const states: State[] = ['failing', 'held', 'restarting', 'errored', 'cannot fail', 'warning', 'not reported', 'not checked', 'passing', 'no probe'];

export const levelOf: Record<State, Shape> = {
  failing: 'bad',
  held: 'bad',
  restarting: 'warn',
  errored: 'warn',
  'cannot fail': 'lie',
  warning: 'warn',
  'not reported': 'unknown',
  'not checked': 'unknown',
  passing: 'good',
  'no probe': 'none',
};

export const levels: Level[] = ['bad', 'warn', 'unknown', 'good', 'none'];

const shapes: Record<Shape, preact.JSX.Element | null> = {
  bad: (
    <>
      <path d="M5 1h6l4 4v6l-4 4H5l-4-4V5z" />
      <path class="cut" d="M5 5l6 6M11 5l-6 6" />
    </>
  ),
  warn: (
    <>
      <path d="M8 1l7.5 14H.5z" />
      <path class="cut" d="M8 6v4M8 12v1" />
    </>
  ),
  lie: (
    <>
      <circle class="whole" cx="8" cy="8" r="6.5" />
      <path class="line" d="M3.5 3.5l9 9" />
    </>
  ),
  good: (
    <>
      <circle cx="8" cy="8" r="7" />
      <path class="cut" d="M4.5 8.5l2.5 2.5 4.5-5" />
    </>
  ),
  unknown: (
    <>
      <rect class="open" x="2" y="2" width="12" height="12" />
      <path class="line" d="M5 8h6" />
    </>
  ),
  none: null,
};

// Mark is a state by its shape, its colour and its text.
export function Mark({level, children}: {level: Shape; children: preact.ComponentChildren}) {
  return (
    <span class={`mark ${level}`}>
      <svg class="shape" viewBox="0 0 16 16" aria-hidden="true">
        {shapes[level]}
      </svg>
      <span class="text">{children}</span>
    </span>
  );
}

export const StateMark = ({state}: {state: State}) => <Mark level={levelOf[state]}>{state}</Mark>;
