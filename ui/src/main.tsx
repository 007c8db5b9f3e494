import {effect, signal} from '@preact/signals';
import {render} from 'preact';
import {Mark} from './marks';
import {ControlPlane} from './plane';
import {ProblemList} from './problems';
import {Proxies} from './proxies';
import {Restarts} from './restarts';
import {view, views} from './route';
import {Services} from './services';
import {content, isBlind, isUnknown, now, refused, section, watch} from './source';
import './style.css';
import {clock, short} from './time';
import type {Name} from './types';
import {Watchdog} from './watchdog';
import {Workloads} from './workloads';

const pages: Record<Name, () => preact.JSX.Element | null> = {
  workloads: Workloads,
  services: Services,
  proxies: Proxies,
  restarts: Restarts,
  watchdog: Watchdog,
  controlplane: ControlPlane,
  problems: () => <ProblemList />,
};

function Verdict() {
  const problems = content('problems');
  if (isUnknown.value) return <Mark level="unknown">unknown</Mark>;
  if (!problems) return null;
  return <Mark level={problems.ok ? 'good' : 'bad'}>{problems.summary}</Mark>;
}

function Freshness() {
  const {readAt} = section(view.value);
  if (isBlind.value || !readAt) return null;
  return <p class="fresh">read {short(now.value - Date.parse(readAt))} ago</p>;
}

function Blind() {
  const blind = isBlind.value;
  if (!blind) return null;
  return (
    <div class="notice bad blind" role="alert">
      <p>
        <strong>{blind.since ? `Blind since ${clock(blind.since)}.` : 'Blind.'}</strong> {blind.why}
      </p>
      {blind.since > 0 && <p>Below is the state of {clock(blind.since)}: it may have changed.</p>}
    </div>
  );
}

function View() {
  const Page = pages[view.value];
  const {denied, absent, error, readAt} = section(view.value);
  if (denied) return <p class="notice bad">Not allowed: {error}</p>;
  if (absent) return <p class="notice warn">{error}</p>;
  if (!readAt || !content(view.value)) return isBlind.value ? null : <p>Reading…</p>;
  return <Page />;
}

function App() {
  if (refused.value) {
    return (
      <main class="refused">
        <h1>Sonde</h1>
        <p class="notice bad" role="alert">
          {refused.value}
        </p>
      </main>
    );
  }
  return (
    <>
      <a class="skip" href="#main" onClick={skip}>
        To the content
      </a>
      <header class="top">
        <h1>Sonde</h1>
        <p class="verdict">
          <Verdict />
        </p>
        <Freshness />
      </header>
      <nav aria-label="Views">
        <ul>
          {views.map((v) => (
            <li key={v.name}>
              <a href={`#/${v.name}`} aria-current={v.name === view.value ? 'page' : undefined}>
                {v.title}
              </a>
            </li>
          ))}
        </ul>
      </nav>
      <Blind />
      <main id="main" tabIndex={-1} class={isBlind.value ? 'old' : ''}>
        <h2 class="hidden">{views.find((v) => v.name === view.value)?.title}</h2>
        <View />
      </main>
      <p class="hidden" aria-live="polite">
        {announced.value}
      </p>
    </>
  );
}

// skip moves the focus without a change of the address, which is the view's.
function skip(event: Event) {
  event.preventDefault();
  document.getElementById('main')?.focus();
}

// What is read out: the verdict, at most once in ten seconds.
const announced = signal('');
const announceEvery = 10_000;
let announcedAt = 0;
effect(() => {
  const summary = isUnknown.value ? 'blind: the control plane does not answer' : content('problems')?.summary;
  if (!summary || summary === announced.peek() || now.value - announcedAt < announceEvery) return;
  announcedAt = now.value;
  announced.value = summary;
});

effect(() => {
  const problems = content('problems');
  const title = views.find((v) => v.name === view.value)?.title;
  document.title = `${isUnknown.value ? 'blind' : problems ? (problems.ok ? 'ok' : 'not ok') : ''} ${title} · Sonde`.trim();
});

render(<App />, document.getElementById('app')!);
void watch();
