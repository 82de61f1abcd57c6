// Package settings is how the long-running programs read what they are told: by
// environment and command line, everything checked at once, so that who starts
// one hears of every fault and not of the first. A [Check] gathers them.
//
// A setting that is set but blank is a fault, never a default. What is wrong is
// said without the value, since a secret may have been put into the wrong place;
// a [Secret] keeps its own text out of logs, errors and dumps.
//
// What a setting means is for its program to say: see the package config of each.
package settings
