import {Mark} from './marks';
import {content} from './source';
import {Ago} from './time';
import type {Level, Problem} from './types';

const levelOf: Record<Problem['severity'], Level> = {critical: 'bad', error: 'bad', warning: 'warn', note: 'unknown'};

const first = 5;

// ProblemList says what is wrong, the worst first, as sondectl status does. With most it leaves out the rest, and notes.
export function ProblemList({most}: {most?: number}) {
  const all = content('problems')?.problems.filter((p) => !most || p.severity !== 'note');
  if (!all) return null;
  const shown = most ? all.slice(0, most) : all;
  if (shown.length === 0) return most ? null : <p>Nothing is known to be wrong.</p>;
  return (
    <section class="problems" aria-label="Problems">
      <ol>
        {shown.map((p) => (
          <li key={`${p.severity} ${p.mesh} ${p.objects[0]} ${p.what}`} class={levelOf[p.severity]}>
            <h3>
              <Mark level={levelOf[p.severity]}>{p.severity}</Mark>{' '}
              <span>
                {p.objects.slice(0, first).join(', ')}
                {p.objects.length > first && ` and ${p.objects.length - first} more`}: {p.what}
              </span>{' '}
              {p.since && (
                <small>
                  for <Ago at={p.since} />
                </small>
              )}
            </h3>
            {(p.notes ?? []).slice(0, most ? 2 : undefined).map((n) => (
              <p key={n} class="reason">
                {n}
              </p>
            ))}
            <p class="do">
              <code>{p.do}</code>
            </p>
          </li>
        ))}
      </ol>
      {!most && content('problems')?.leftOut && <p>{content('problems')?.leftOut} more: see sondectl status -o json</p>}
      {all.length > shown.length && (
        <p>
          <a href="#/problems">All {all.length} problems</a>
        </p>
      )}
    </section>
  );
}
