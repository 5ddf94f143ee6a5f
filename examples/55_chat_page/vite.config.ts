import react from '@vitejs/plugin-react';
import { defineConfig } from 'vite';

// The token stays in this server: the browser calls /ui here, and what is passed on has the header.
const perdure = {
  target: process.env.PERDURE_URL ?? 'http://127.0.0.1:8000',
  headers: { Authorization: `Bearer ${process.env.PERDURE_TOKEN ?? ''}` },
  changeOrigin: true,
};

export default defineConfig({
  plugins: [react()],
  server: { proxy: { '/ui': perdure } },
  preview: { proxy: { '/ui': perdure } },
});
