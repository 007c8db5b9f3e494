import {readFileSync} from 'node:fs';

// The page is built into the room of sondectl that embeds it, with the same names each time, and the licence of what is in it.
export default {
  build: {
    emptyOutDir: true,
    target: 'es2022',
    modulePreload: false,
    rollupOptions: {
      output: {entryFileNames: 'app.js', chunkFileNames: '[name].js', assetFileNames: 'app.[ext]'},
    },
  },
  plugins: [
    {
      name: 'licence',
      generateBundle(_, bundle) {
        const licences = ['preact', '@preact/signals'].map((name) => `With ${name}:\n${readFileSync(`node_modules/${name}/LICENSE`, 'utf8').trim()}\n`);
        bundle['app.js'].code = `/*\n${licences.join('\n')}*/\n${bundle['app.js'].code}`;
      },
    },
  ],
};
