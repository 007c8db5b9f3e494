import {signal} from '@preact/signals';
import {useEffect, useRef} from 'preact/hooks';
import {param, setParams} from './route';

// opener gets the focus back when the detail is closed.
const opener = signal<HTMLElement | null>(null);

export const opened = () => param('open');

export function open(id: string) {
  opener.value = document.activeElement as HTMLElement | null;
  setParams({open: id});
}

function close() {
  setParams({open: ''});
  opener.value?.focus();
}

// Detail is beside the table, or over it where there is no room.
export function Detail({title, children}: {title: string; children: preact.ComponentChildren}) {
  const heading = useRef<HTMLHeadingElement>(null);
  const id = opened();
  useEffect(() => heading.current?.focus(), [id]);
  useEffect(() => {
    const key = (event: KeyboardEvent) => event.key === 'Escape' && close();
    addEventListener('keydown', key);
    return () => removeEventListener('keydown', key);
  }, []);
  return (
    <aside class="detail" aria-labelledby="detail-title">
      <header>
        <h2 id="detail-title" tabIndex={-1} ref={heading}>
          {title}
        </h2>
        <button type="button" onClick={close}>
          Close
        </button>
      </header>
      {children}
    </aside>
  );
}
