// Package acceptance holds no code, only tests that stand outside the packages they test: those that need a cluster of
// their own, or several patterns at once.
package acceptance
