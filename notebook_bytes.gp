set terminal svg size 640,640 font 'sans-serif,13' background '#ffffff'
set output 'notebook_bytes.svg'
set border 3
set tics nomirror
$bytes << EOD
2 8589934592 0 16640 0 16640 0 16640 0 16576 0 16640.000000
4 25769803776 0 99840 0 99840 0 66560 0 49728 0 49920.000000
8 60129542144 0 465920 0 465920 0 199680 0 116032 0 116480.000000
16 128849018880 16106127360 1996800 249600 1996800 1414400 532480 133120 248704 16640 249600.000000
32 266287972352 33285996544 8253440 1031680 8253440 7088640 1331200 532480 530688 66560 515840.000000
64 541165879296 67645734912 33546240 4193280 33546240 31216640 3194880 1597440 1127936 199680 1048320.000000
128 1090921693184 136365211648 135249920 16906240 135249920 130590720 7454720 4259840 2388992 532480 2113280.000000
EOD
set multiplot
set logscale x 2
set logscale y 10
set format y '10^{%L}'
set xrange [1.8:142]
set lmargin 9
set rmargin 14
set key off
set size 1,0.53
set origin 0,0.47
set yrange [1e3:1e13]
set format x ''
set ylabel 'bytes in all'
set label 1 'ring' at 140,1e12 left tc rgb '#d9730d'
set label 2 'gather,' at 140,4e8 left tc rgb '#8a4fbf'
set label 3 'ring-state' at 140,7e7 left tc rgb '#8a4fbf'
set label 4 'paper' at 140,1e7 left tc rgb '#1982d2'
set label 5 'leaders' at 140,1.5e6 left tc rgb '#2d9d5a'
set label 6 'eq. (14)' at 140,2e5 left tc rgb '#999999'
plot $bytes using 1:12 with lines lw 7 lc rgb '#dddddd', \
     $bytes using 1:2 with linespoints pt 7 ps 0.5 lw 2 lc rgb '#d9730d', \
     $bytes using 1:6 with linespoints pt 7 ps 0.5 lw 2 lc rgb '#8a4fbf', \
     $bytes using 1:8 with linespoints pt 7 ps 0.5 lw 2 lc rgb '#1982d2', \
     $bytes using 1:10 with linespoints pt 7 ps 0.5 lw 2 lc rgb '#2d9d5a'
set size 1,0.53
set origin 0,0
set format x '%g'
set xlabel 'ranks'
set label 1 at 140,1.4e11
set label 2 'gather' at 140,1.5e8
set label 3 at 140,1.7e7
set label 4 at 140,3.5e6
set label 5 at 140,5e5
unset label 6
set ylabel 'bytes between nodes'
plot $bytes using 1:3 with linespoints pt 7 ps 0.5 lw 2 lc rgb '#d9730d', \
     $bytes using 1:7 with linespoints pt 7 ps 0.5 lw 2 lc rgb '#8a4fbf', \
     $bytes using 1:5 with linespoints pt 6 ps 0.5 lw 1 lc rgb '#8a4fbf', \
     $bytes using 1:9 with linespoints pt 7 ps 0.5 lw 2 lc rgb '#1982d2', \
     $bytes using 1:11 with linespoints pt 7 ps 0.5 lw 2 lc rgb '#2d9d5a'
unset multiplot
