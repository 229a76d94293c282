// The parts of Apache ECharts 6.1.0 that the page draws with. echarts.min.js is made from this file:
//
//   npm install echarts@6.1.0 esbuild@0.28.2
//   npx esbuild echarts.entry.js --bundle --minify --format=iife --global-name=echarts --target=es2020 \
//     --legal-comments=none '--define:process.env.NODE_ENV="production"' --outfile=echarts.min.js \
//     '--banner:js=/*! Apache ECharts 6.1.0, bundled and minified; see echarts.LICENSE.txt */'
export { init, registerCustomSeries } from "echarts/core";
import { use } from "echarts/core";
import {
  BarChart, BoxplotChart, CustomChart, HeatmapChart, LineChart, ParallelChart, ScatterChart,
} from "echarts/charts";
import {
  DataZoomInsideComponent, DataZoomSliderComponent, GridComponent, LegendComponent, MarkAreaComponent,
  MarkLineComponent, MarkPointComponent, ParallelComponent, TitleComponent, TooltipComponent, VisualMapComponent,
} from "echarts/components";
import { LabelLayout, ScatterJitter } from "echarts/features";
import { SVGRenderer } from "echarts/renderers";

use([
  BarChart, BoxplotChart, CustomChart, HeatmapChart, LineChart, ParallelChart, ScatterChart,
  DataZoomInsideComponent, DataZoomSliderComponent, GridComponent, LegendComponent, MarkAreaComponent,
  MarkLineComponent, MarkPointComponent, ParallelComponent, TitleComponent, TooltipComponent, VisualMapComponent,
  LabelLayout, ScatterJitter, SVGRenderer,
]);
